package bench

import "context"

func (b *Bench) consume(ctx context.Context, s *stage, r *Report) error { return nil }
func (b *Bench) redrive(ctx context.Context, s *stage, r *Report) error { return nil }
func (b *Bench) latency(ctx context.Context, s *stage, r *Report) error { return nil }
func (b *Bench) enqueue(ctx context.Context, s *stage, r *Report) error { return nil }
func (s *stage) steady(ctx context.Context, r *Report) error            { return nil }
