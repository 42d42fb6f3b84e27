"""More than one engine behind one address: a router, a policy for the number of replicas, a front, Ray."""
