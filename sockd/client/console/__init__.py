"""What every command needs: the management client, the terminal, tables."""
