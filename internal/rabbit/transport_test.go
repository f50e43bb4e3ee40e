package rabbit_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/rabbit"
)

// pair is a real TCP connection; its far end reads only when asked to.
func pair(t *testing.T) (near, far net.Conn) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	accepted := make(chan net.Conn, 1)
	go func() {
		conn, err := listener.Accept()
		if err == nil {
			accepted <- conn
		}
		close(accepted)
	}()
	near, err = net.Dial("tcp", listener.Addr().String())
	require.NoError(t, err)
	far = <-accepted
	require.NoError(t, listener.Close())
	t.Cleanup(func() { _ = near.Close(); _ = far.Close() })
	return near, far
}

func TestCoalescedBytesArriveInOrderAndWhole(t *testing.T) {
	t.Parallel()
	near, far := pair(t)
	w := rabbit.NewWire(near, time.Second)
	var sent bytes.Buffer
	received := make(chan []byte, 1)
	go func() {
		all, _ := io.ReadAll(far)
		received <- all
	}()
	write(t, w, &sent, []byte("AMQP\x00\x00\x09\x01"))
	for i := range 20_000 {
		size := i%300 + 1
		if i%5000 == 0 {
			size = 3 * rabbit.CoalesceLimit // larger than all there is room for
		}
		write(t, w, &sent, frame(3, 1, bytes.Repeat([]byte{byte(i)}, size)))
	}
	require.NoError(t, w.Close(), "closing flushes")
	require.True(t, bytes.Equal(sent.Bytes(), <-received))
	_, err := w.Write([]byte("late"))
	require.ErrorIs(t, err, net.ErrClosed)
}

// write writes p, and notes it in sent.
func write(t *testing.T, w io.Writer, sent *bytes.Buffer, p []byte) {
	t.Helper()
	sent.Write(p)
	n, err := w.Write(p)
	require.NoError(t, err)
	require.Equal(t, len(p), n)
}

// frame is one of AMQP's.
func frame(kind byte, channel uint16, payload []byte) []byte {
	f := binary.BigEndian.AppendUint16([]byte{kind}, channel)
	f = binary.BigEndian.AppendUint32(f, uint32(len(payload)))
	return append(append(f, payload...), 0xCE)
}

// methodFrame has a method of channel 1, and no arguments.
func methodFrame(class, method uint16) []byte {
	return frame(1, 1, binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, class), method))
}

// Between the frames that the library writes, in pieces, go those of a publisher, never into one; and none to a channel that was closed.
func TestPublishesGoBetweenTheLibrarysFrames(t *testing.T) {
	t.Parallel()
	near, far := pair(t)
	w := rabbit.NewWire(near, time.Second)
	received := make(chan []byte, 1)
	go func() {
		all, _ := io.ReadAll(far)
		received <- all
	}()
	var want []byte
	library := append([]byte("AMQP\x00\x00\x09\x01"), frame(1, 0, make([]byte, 30))...)
	for range 50 {
		library = append(library, frame(8, 0, nil)...)
		library = append(library, frame(3, 2, bytes.Repeat([]byte("x"), 10))...)
	}
	ours := frame(2, 1, []byte("ours"))
	written := 0
	for at := range library { // byte by byte
		n, err := w.Write(library[at : at+1])
		require.NoError(t, err)
		written += n
		require.NoError(t, w.Publish(1, ours))
	}
	_, err := w.Write(methodFrame(20, 40)) // channel.close
	require.NoError(t, err)
	require.Error(t, w.Publish(1, ours))
	require.NoError(t, w.Publish(2, ours), "another channel")
	_, err = w.Write(methodFrame(20, 10)) // channel.open
	require.NoError(t, err)
	require.NoError(t, w.Publish(1, ours))
	_, err = w.Write(methodFrame(20, 41)) // channel.close-ok
	require.NoError(t, err)
	require.Error(t, w.Publish(1, ours))
	require.NoError(t, w.Close())
	got := <-received
	require.Equal(t, len(library), written)
	require.Equal(t, len(library)+2, bytes.Count(got, ours))
	want = bytes.ReplaceAll(got, ours, nil)
	require.True(t, bytes.HasPrefix(want, library), "nothing else lies between the library's bytes")
}

// A peer that does not read any more: every write ends, by the deadline, and memory stays bounded.
func TestWritesEndWhenThePeerStopsReading(t *testing.T) {
	t.Parallel()
	near, _ := pair(t)
	w := rabbit.NewWire(near, 200*time.Millisecond)
	chunk := frame(3, 1, make([]byte, 64<<10))
	_, err := w.Write([]byte("AMQP\x00\x00\x09\x01"))
	require.NoError(t, err)
	written := 0
	begun := time.Now()
	for {
		n, err := w.Write(chunk)
		written += n
		if err != nil {
			require.ErrorIs(t, err, os.ErrDeadlineExceeded, "%v", err)
			break
		}
		require.Less(t, time.Since(begun), 10*time.Second, "never ends")
		require.Less(t, written, 32<<20, "unbounded: more than the kernel and the buffer hold")
	}
	require.ErrorIs(t, w.WriteError(), os.ErrDeadlineExceeded)
	within(t, 3*time.Second, func() { _ = w.Close() })
}

// Without a kernel's buffers in between: no more than two buffers' worth is ever taken.
func TestCoalescingIsBoundedInMemory(t *testing.T) {
	t.Parallel()
	near, far := net.Pipe()
	t.Cleanup(func() { _ = far.Close() })
	w := rabbit.NewWire(near, time.Second)
	written := 0
	for {
		n, err := w.Write(frame(3, 1, make([]byte, 1<<10)))
		if written += n; err != nil {
			break
		}
	}
	require.ErrorIs(t, w.WriteError(), os.ErrDeadlineExceeded)
	require.LessOrEqual(t, written, 2*rabbit.CoalesceLimit)
	_ = w.Close()
}

func TestAbortFreesAWaitingWriter(t *testing.T) {
	t.Parallel()
	near, _ := pair(t)
	w := rabbit.NewWire(near, time.Minute)
	ended := make(chan struct{})
	var once sync.Once
	full := make(chan struct{})
	go func() {
		defer close(ended)
		for written := 0; ; written += 64 << 10 {
			if written > 16<<20 {
				once.Do(func() { close(full) })
			}
			if _, err := w.Write(frame(3, 1, make([]byte, 64<<10))); err != nil {
				return
			}
			if written > 1<<30 {
				return
			}
		}
	}()
	select {
	case <-full:
	case <-time.After(time.Second): // the buffers were full before
	}
	w.Abort()
	await(t, "the writer", ended, 5*time.Second)
}

// The flusher fails while nobody writes: the socket is closed, so that the reader notices.
func TestAFailedFlushClosesTheSocket(t *testing.T) {
	t.Parallel()
	near, _ := pair(t)
	w := rabbit.NewWire(near, 100*time.Millisecond)
	for {
		if _, err := w.Write(frame(3, 1, make([]byte, 64<<10))); err != nil {
			break
		}
	}
	require.NoError(t, ignoreClosed(near.SetReadDeadline(time.Now().Add(5*time.Second))))
	_, err := w.Read(make([]byte, 1))
	require.ErrorIs(t, err, net.ErrClosed)
}

func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// Close towards a peer that does not read is bounded, far under the write timeout.
func TestCloseIsBounded(t *testing.T) {
	t.Parallel()
	near, _ := pair(t)
	w := rabbit.NewWire(near, time.Minute)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			if _, err := w.Write(frame(3, 1, make([]byte, 64<<10))); err != nil {
				return
			}
		}
	}()
	select {
	case <-ended:
	case <-time.After(300 * time.Millisecond):
	}
	within(t, 5*time.Second, func() { _ = w.Close() })
	await(t, "the writer", ended, 5*time.Second)
}
