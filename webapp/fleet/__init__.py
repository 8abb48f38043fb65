"""Where engines run: slots that are leased, and the models an operator allows."""
