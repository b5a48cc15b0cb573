"""Where the workers are: a source names them, the registrar asks each who it is and keeps the fleet true."""
