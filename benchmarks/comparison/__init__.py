"""Warren beside other brokers on one machine: measured in alternating runs, kept as JSON, told as a page and a figure."""
