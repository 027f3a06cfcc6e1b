"""From a captured graph to kernel source, without a language model."""
