"""Pure arithmetic about processors, nothing measured: what a launch can occupy, what an access touches, what a roof allows."""
