"""What takes the URL of a buffer or of a topic and does the right thing for each."""
