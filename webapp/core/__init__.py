"""What every app shares: base models, audit, health, the demo and service commands."""
