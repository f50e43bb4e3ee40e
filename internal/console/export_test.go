package console

// MaxStreams is the most open pages that are told of news.
const MaxStreams = maxStreams
