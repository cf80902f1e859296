"""What users get to see: figures, what is logged, progress, notebooks."""
