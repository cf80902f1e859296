"""The size of what is trained."""

WIDTH, LAYERS, BATCH = 1024, 8, 1  # 101 million parameters, 128 tokens a micro-batch
