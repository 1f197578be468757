"""LLVM IR and machine code: expressions, statements, the entry that a call passes through."""
