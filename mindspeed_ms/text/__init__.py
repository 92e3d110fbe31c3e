"""Text to tokens and back, and the prompt a chat model was trained on: shared by the data path and the service."""
