"""Output for users: figures, what is logged, progress, notebooks."""
