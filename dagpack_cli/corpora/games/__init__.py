"""Games: transitions of states and actions."""
