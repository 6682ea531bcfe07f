//! What the emulator measures, as it is written down.
