"""What an operator sets: typed settings, lanes, crash points, and the embedded servers.

The bottom floor: nothing here imports another room of the house.
"""
