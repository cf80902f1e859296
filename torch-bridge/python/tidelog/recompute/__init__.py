"""Regions under `torch.utils.checkpoint`, and which of them run once."""
