"""TileLang's package of hardware facts and recommended tiles: :mod:`ptxtile.carver.arch` and
:mod:`ptxtile.carver.template`."""
