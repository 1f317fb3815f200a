"""The modes of spec generation: what is looked for on a node. One small file each; ``table`` lists them."""
