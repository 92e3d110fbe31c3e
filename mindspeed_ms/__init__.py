"""mindspeed-ms: a language model's whole life on MindSpore."""

__version__ = "0.1.0"
