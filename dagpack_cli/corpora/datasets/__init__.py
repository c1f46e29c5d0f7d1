"""Training sets: text, chats, preferences, groups with rewards, token ids."""
