"""Other forms of a lowered program, for calls that need them: in place, strided, column-major."""
