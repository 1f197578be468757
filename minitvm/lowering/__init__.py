"""From a schedule to loops: ranges, bodies, the order of the passes (``lower``)."""
