"""The intermediate representation: types, expressions, buffers, statements, layouts, programs."""
