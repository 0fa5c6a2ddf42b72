"""Request traces: readers, a generated look-alike, prompts as token ids, and hit-ratio bounds."""
