"""MindSpore strategy files: how each operator and parameter of an exported network is split. Imports no MindSpore."""
