package verbs

// Version is the version of this module, as in "0.1.0". Programs that report it can add the
// commit: see [runtime/debug.ReadBuildInfo].
const Version = "0.1.0-dev"
