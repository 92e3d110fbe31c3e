"""Parallelism: topologies and plans that need no MindSpore, and the groups that run them."""

if __name__ != "mindspeed_ms.parallel":
    raise ImportError(f"import mindspeed_ms.parallel, not {__name__}: the folder is a part of that package")
