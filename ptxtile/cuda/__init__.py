"""TileLang's package of what is NVIDIA's alone; here everything is. Scripts use :mod:`ptxtile.cuda.intrinsics`."""
