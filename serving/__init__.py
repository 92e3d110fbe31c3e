"""Operators: one name, a reference body from MindSpore built-ins, a native CPU body, a declared Ascend body."""
