"""From raw text to rows of fixed length on disk, and from there to batches."""
