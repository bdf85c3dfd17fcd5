"""The passes from tile IR to GPU IR, one file each; :mod:`ptxtile.lower.pipeline` lists them in order."""
