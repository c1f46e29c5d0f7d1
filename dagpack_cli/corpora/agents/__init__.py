"""Logs of agents: sessions, rollouts and trajectories as the tools wrote them."""
