"""The plans that :mod:`ptxtile.carver.template` gives, under TileLang's names."""
