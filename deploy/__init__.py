"""What runs the product: the setup of a fresh machine and the real engine to try it on. No part of the package."""
