"""What imports leave in a Zygote, and what each of its forks must have of its own."""
