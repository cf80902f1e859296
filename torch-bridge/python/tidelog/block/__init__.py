"""An offload block: how it begins and ends, and what users ask of it."""
