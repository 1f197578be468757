"""From a program to a function: ``build``, ``prepack``, and the text of ``help`` for the result."""
