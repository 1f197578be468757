"""Devices: their interface, drivers that complete it, and the memory that is managed on them."""
