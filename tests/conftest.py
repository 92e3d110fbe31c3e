"""A machine that is busy with other things makes no example wrong: no deadlines for the drawn ones."""

from hypothesis import settings

settings.register_profile("patient", deadline=None)
settings.load_profile("patient")
