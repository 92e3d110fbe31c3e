"""Serving: the engine that turns requests into tokens, the protocols in front of it, and a client."""

if __name__ != "mindspeed_ms.serving":
    raise ImportError(f"import mindspeed_ms.serving, not {__name__}: the folder is a part of that package")
