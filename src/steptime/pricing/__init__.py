"""Token prices and costs: what tokens cost a seller, and what a price list implies about the model."""
