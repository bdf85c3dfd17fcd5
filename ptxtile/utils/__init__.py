"""TileLang's name of the package of :mod:`ptxtile.utils.tensor`; nothing else belongs here."""
