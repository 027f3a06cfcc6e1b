"""What the processes of one run say to each other, as frames of `core/frames`: one file per conversation."""
