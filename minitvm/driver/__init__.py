"""From a program to a function: ``build``, ``prepack``, and what ``help`` says of the result."""
