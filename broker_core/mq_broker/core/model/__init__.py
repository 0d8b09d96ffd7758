"""What there is: rows, lanes, subscriptions, producers, staged sets ... and all of it together, the state."""
