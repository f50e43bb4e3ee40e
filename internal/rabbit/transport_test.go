package rabbit_test

import (
	"bytes"
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
	w := rabbit.NewWire(near, time.Second, true)
	var sent bytes.Buffer
	received := make(chan []byte, 1)
	go func() {
		all, _ := io.ReadAll(far)
		received <- all
	}()
	for i := range 20_000 {
		chunk := bytes.Repeat([]byte{byte(i)}, i%300+1)
		if i%5000 == 0 {
			chunk = bytes.Repeat([]byte{byte(i)}, 3*rabbit.CoalesceLimit) // larger than all there is room for
		}
		sent.Write(chunk)
		n, err := w.Write(chunk)
		require.NoError(t, err)
		require.Equal(t, len(chunk), n)
	}
	require.NoError(t, w.Close(), "closing flushes")
	require.True(t, bytes.Equal(sent.Bytes(), <-received))
	_, err := w.Write([]byte("late"))
	require.ErrorIs(t, err, net.ErrClosed)
}

// A peer that does not read any more: every write ends, by the deadline, and memory stays bounded.
func TestWritesEndWhenThePeerStopsReading(t *testing.T) {
	t.Parallel()
	for name, coalesce := range map[string]bool{"plain": false, "coalesced": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			near, _ := pair(t)
			w := rabbit.NewWire(near, 200*time.Millisecond, coalesce)
			chunk := make([]byte, 64<<10)
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
		})
	}
}

// Without a kernel's buffers in between: no more than two buffers' worth is ever taken.
func TestCoalescingIsBoundedInMemory(t *testing.T) {
	t.Parallel()
	near, far := net.Pipe()
	t.Cleanup(func() { _ = far.Close() })
	w := rabbit.NewWire(near, time.Second, true)
	written := 0
	for {
		n, err := w.Write(make([]byte, 1<<10))
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
	w := rabbit.NewWire(near, time.Minute, true)
	ended := make(chan struct{})
	var once sync.Once
	full := make(chan struct{})
	go func() {
		defer close(ended)
		for written := 0; ; written += 64 << 10 {
			if written > 16<<20 {
				once.Do(func() { close(full) })
			}
			if _, err := w.Write(make([]byte, 64<<10)); err != nil {
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
	w := rabbit.NewWire(near, 100*time.Millisecond, true)
	for {
		if _, err := w.Write(make([]byte, 64<<10)); err != nil {
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
	w := rabbit.NewWire(near, time.Minute, true)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			if _, err := w.Write(make([]byte, 64<<10)); err != nil {
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
