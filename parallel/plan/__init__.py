"""Which parallel settings a training job should run with, what they cost, and the files of a launch. No MindSpore."""
