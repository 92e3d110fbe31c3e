"""What joins the devices of a cluster, how fast, and in which order ranks should sit on them. Imports no MindSpore."""
